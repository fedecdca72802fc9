"""What TensorBoard shows of an evaluation."""
