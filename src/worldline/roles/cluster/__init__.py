"""Many workers: placement, failover, clean-up."""
