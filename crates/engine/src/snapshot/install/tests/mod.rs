//! Tests of installs.
