//! A software EFA device under the real libibverbs and libefa.
