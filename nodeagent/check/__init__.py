"""JUDGE: Snapshot x Policy -> Findings. Pure."""
