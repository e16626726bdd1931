//! Two owners would destroy it twice, and poll its queues at once.

fn twice(pair: &efa_verbs::QueuePair) -> efa_verbs::QueuePair {
    pair.clone()
}

fn main() {
    let _ = twice;
}
