"""What names and expressions hold: an abstract interpretation of the project."""
