"""What all parts of the simulated device use: its state, its sync events, patches, and torch's libraries."""
