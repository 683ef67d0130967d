"""What every part of the simulated device uses: its state, its sync events, patches, torch's libraries."""
