//! Raw FFI to libibverbs and libefa (AWS Elastic Fabric Adapter).
