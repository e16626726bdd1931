//! Every status that a device can report, on demand: each ends the operation that it concerns,
//! with a cause and a remedy, and nothing else.

use anyhow::{Result, ensure};
use efa_tests::{Pair, done, ended, under};
use efa_transport::{Config, FailureKind};
use efa_verbs::QpState;

#[test]
fn every_device_status_ends_its_operation_alone_with_cause_and_remedy() {
    under("max-rdma-size=4096").run(|t| {
        let mut pair = Pair::new(t, Config::default())?;
        let (source, target) = (pair.region(&[1; 100])?, pair.region(&[0; 100])?);
        for status in (1..=15).chain([18]) {
            t.set_faults(&format!("status={status}:1"))?;
            let put = pair.a.put(pair.ab, &source, target.remote()?)?;
            let completion = ended(&mut pair.a, put)?;
            t.set_faults("")?;
            let failure = completion.result.unwrap_err();
            let kind = FailureKind::Device {
                vendor_status: status,
            };
            ensure!(failure.kind() == kind, "{status}: {failure}");
            ensure!(failure.offset() == Some(0), "{failure}");
            ensure!(
                failure.peer_address() == Some(pair.b.address()),
                "{failure}"
            );
            let advice = failure
                .explain()
                .map(|why| why.to_string())
                .unwrap_or_default();
            ensure!(
                advice.len() > 40,
                "status {status} has no advice: {advice:?}"
            );
            // SRD is not RC: the queue pair and everybody else go on.
            ensure!(
                pair.a.queue_pair().state()? == QpState::Rts,
                "status {status}"
            );
            pair.works(&[2; 5000])?;
        }
        let stats = pair.a.stats();
        ensure!(
            stats.failed == 16 && stats.stale_completions == 0,
            "{stats:?}"
        );
        Ok(())
    });
}

#[test]
fn the_first_root_cause_of_several_failures_is_the_one_reported() {
    // The first and the last of one batch are flushed (a consequence), one has a cause.
    under("max-rdma-size=4096 faults=status=1@1,status=7@4,status=1@6").run(|t| {
        let mut pair = Pair::new(t, Config::default())?;
        let length = 6 * 4096;
        let (source, target) = (
            pair.region(&vec![1; length])?,
            pair.region(&vec![0; length])?,
        );
        let put = pair.a.put(pair.ab, &source, target.remote()?)?;
        let failure = ended(&mut pair.a, put)?.result.unwrap_err();
        ensure!(failure.vendor_status() == Some(7), "{failure}");
        ensure!(failure.offset() == Some(3 * 4096), "{failure}");
        pair.works(&[1; 100])
    });
}

#[test]
fn a_failure_says_how_many_bytes_were_done_and_where_it_failed() {
    under("max-rdma-size=4096 faults=status=7@3").run(|t| {
        let config = Config {
            send_depth: 1,
            ..Config::default()
        };
        let mut pair = Pair::new(t, config)?;
        let (source, target) = (pair.region(&[1; 40_960])?, pair.region(&[0; 40_960])?);
        let put = pair.a.put(pair.ab, &source, target.remote()?)?;
        let completion = ended(&mut pair.a, put)?;
        let failure = completion.result.unwrap_err();
        ensure!(failure.vendor_status() == Some(7), "{failure}");
        ensure!(failure.offset() == Some(8192), "{failure}");
        ensure!(completion.bytes >= 8192, "{} bytes", completion.bytes);
        pair.works(&[1; 100])
    });
}

#[test]
fn a_verb_that_fails_names_itself_and_what_to_do() {
    under("max-rdma-size=4096").run(|t| -> Result<()> {
        let domain = t.domain()?;
        for (verb, name) in [
            ("reg_mr", "ibv_reg_mr"),
            ("create_cq", "create_cq"),
            ("create_qp", "create_qp"),
            ("create_ah", "ibv_create_ah"),
        ] {
            t.set_faults(&format!("enomem={verb}:1"))?;
            let error = match verb {
                "reg_mr" => efa_tests::region(&domain, &[0; 8]).map(drop).unwrap_err(),
                _ => Pair::on(&domain, Config::default()).map(drop).unwrap_err(),
            };
            t.set_faults("")?;
            let text = format!("{error:#}");
            ensure!(
                text.contains(name) && text.contains("ENOMEM"),
                "{verb}: {text}"
            );
            let mut pair = Pair::on(&domain, Config::default())?;
            let (source, target) = (pair.region(&[1; 8])?, pair.region(&[0; 8])?);
            let put = pair.a.put(pair.ab, &source, target.remote()?)?;
            done(&mut pair.a, put)?;
        }
        Ok(())
    });
}
