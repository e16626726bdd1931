//! The library that brings soft-efa into a program.
