"""The fixes that rules offer."""
