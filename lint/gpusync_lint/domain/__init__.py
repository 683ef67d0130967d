"""Abstract values, their joins, and what is known of torch, of Python and of names outside the project."""
