"""What all roles share: the loop, leases, restoring and reading worlds, live events, facts."""
