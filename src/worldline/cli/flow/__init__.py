"""Commands about flow domains that need no store."""
