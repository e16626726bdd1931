//! Transfers over AWS Elastic Fabric Adapter: any size, many peers, typed errors.
