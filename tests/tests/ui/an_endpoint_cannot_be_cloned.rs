//! Two owners would poll its queues at once.

fn twice(endpoint: &efa_transport::Endpoint) -> efa_transport::Endpoint {
    endpoint.clone()
}

fn main() {
    let _ = twice;
}
