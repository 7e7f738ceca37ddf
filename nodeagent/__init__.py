"""nodeagent: topology, pinning, market-data ring, jitter and health on bare-metal GPU nodes."""
