"""The policy: encoders, network, decoding, files, and the placers that use it."""
