"""What this machine has: native libraries of this package."""
