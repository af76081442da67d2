"""What a checkpoint holds: the state's schema, its channels and its messages."""
