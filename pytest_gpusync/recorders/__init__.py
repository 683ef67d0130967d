"""Recorders, one interface, chosen by name and imported only then."""
