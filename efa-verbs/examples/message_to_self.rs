//! Sends a message to itself over the first EFA device, through whatever rdma-core is installed.
//!
//! Shows efa-verbs by itself: posting is `unsafe`, because nothing at this level keeps alive what a
//! request names. Programs use efa-transport, which does.

use std::time::{Duration, Instant};

use efa_verbs::{
    Access, Buffer, DEFAULT_QUEUE_KEY, QueuePairConfig, ReceiveRequest, RecvCompletion, Request,
    SendCompletion,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = efa_verbs::devices()?.into_iter().next();
    let context = device.ok_or("there is no EFA device")?.open()?;
    let domain = context.alloc_pd()?;
    let region = domain.register(Buffer::zeroed(64)?, Access::LOCAL)?;
    let handle = domain.create_address_handle(context.gid()?)?;
    let mut pair = domain.create_queue_pair(&QueuePairConfig::default())?;
    pair.to_init(DEFAULT_QUEUE_KEY)?;
    pair.to_rtr()?;
    pair.to_rts(0, None)?;

    let message = b"hello";
    region.copy_in(0, message)?;
    let to = handle.destination(pair.number(), DEFAULT_QUEUE_KEY);
    let receive = ReceiveRequest {
        wr_id: 1,
        buffer: region.sge(32, 32)?,
    };
    let pieces = [region.sge(0, message.len() as u32)?];
    let send = Request::Send {
        local: &pieces,
        immediate: None,
    };
    // SAFETY: `region` and `handle` are dropped after `pair`, and the bytes are only copied.
    unsafe { pair.post_recv(&[receive]) }.map_err(|(_, error)| error)?;
    pair.session_start()?;
    // SAFETY: a session is open; the rest as above.
    unsafe { pair.push(2, &to, send) };
    pair.session_complete()?;

    let ends = Instant::now() + Duration::from_secs(30);
    let (mut sent, mut received) = ([SendCompletion::default()], [RecvCompletion::default()]);
    let mut left = 2;
    while left > 0 {
        left -= pair.poll_send(&mut sent)? + pair.poll_recv(&mut received)?;
        if Instant::now() > ends {
            return Err("nothing arrived within 30 s".into());
        }
        std::thread::sleep(Duration::from_micros(50));
    }
    if !sent[0].status.is_ok() {
        return Err(format!("the device says {}", sent[0].status).into());
    }
    let mut bytes = vec![0; received[0].byte_len as usize];
    region.copy_out(32, &mut bytes)?;
    println!(
        "{:?} arrived, with a libefa that has symbols up to EFA_1.{}",
        String::from_utf8_lossy(&bytes),
        efa_verbs::efa_symbol_version()
    );
    drop(pair);
    Ok(())
}
