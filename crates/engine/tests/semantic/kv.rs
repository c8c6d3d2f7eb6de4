//! Transactions, counters, delete by prefix, administration of keyspaces.
