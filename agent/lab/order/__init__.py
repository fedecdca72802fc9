"""What a visit order is worth without training; the page `order` has the answers."""
