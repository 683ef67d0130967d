"""What values the inference knows, and what it knows of torch."""
