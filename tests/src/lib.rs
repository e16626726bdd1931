//! Integration tests that run the same on AWS and on soft-efa.
