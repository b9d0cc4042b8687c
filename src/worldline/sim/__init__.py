"""The whole cluster in one process, one seed: a seeded event loop on virtual time, faults, workloads, invariants."""
