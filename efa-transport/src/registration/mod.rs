//! Registering memory that the program keeps, range by range: [`RegistrationCache`].

mod cache;
mod table;

pub use cache::{CacheStats, CachedRegion, RegistrationCache};
