"""What placers find in equal time on a sealed test set."""
