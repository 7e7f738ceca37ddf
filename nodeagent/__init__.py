"""nodeagent: topology, pinning, market-data ring, jitter and health on bare-metal GPU nodes."""

__version__ = "0.1.0"
"""As in pyproject.toml; read from here, for importlib.metadata costs 20 ms and an e-mail parser."""
