//! Deadlines, leases, space time.
