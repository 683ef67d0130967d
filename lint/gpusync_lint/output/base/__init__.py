"""What every output format implements, and helpers that formats share."""
