//! Commands that are written.

use super::*;

/// A request that begins with the address of its response.
fn with_response(response: &mut [u8], rest: &[u8]) -> Vec<u8> {
    let mut request = (response.as_mut_ptr() as u64).to_ne_bytes().to_vec();
    request.extend_from_slice(rest);
    request
}

fn opened() -> File {
    let file = File::closed(Options::default());
    let mut response = [0u8; 8 + 24];
    // GET_CONTEXT, with both flags in the driver's part.
    let request = with_response(&mut response, &3u64.to_ne_bytes());
    file.command(0, &request, 8).unwrap();
    let events = i32::from_ne_bytes(response[..4].try_into().unwrap());
    assert!(events > 2, "the file of asynchronous events");
    file.process.take_back(events);
    assert_eq!(response[8 + 8..8 + 10], [1, 0], "one ring in a queue");
    file
}

#[test]
fn headers_are_checked_in_the_kernels_order() {
    let file = opened();
    assert_eq!(file.write(&[0; 7]), Err(libc::EINVAL));
    let mut response = [0u8; 16];
    let request = with_response(&mut response, &[]);
    assert_eq!(file.command(3, &request, 4), Ok(()));
    assert_eq!(
        file.command(3, &request, 0),
        Err(libc::ENOSPC),
        "no room for the answer"
    );
    assert_eq!(file.command(3, &[], 4), Err(libc::ENOSPC), "no request");
    assert_eq!(
        file.command(19, &request, 4),
        Err(libc::EOPNOTSUPP),
        "EFA can't resize queues"
    );
    assert_eq!(file.command(0x4000_0003, &request, 4), Err(libc::EINVAL));
    // The announced length is not the written one.
    let mut bytes = 3u32.to_ne_bytes().to_vec();
    bytes.extend_from_slice(&[9, 0, 4, 0]);
    bytes.extend_from_slice(&request);
    assert_eq!(file.write(&bytes), Err(libc::EINVAL));
}

#[test]
fn a_domain_answers_core_and_driver_side_by_side() {
    let file = opened();
    let mut response = [0xffu8; 16];
    let request = with_response(&mut response, &[]);
    file.command(3, &request, 3).unwrap();
    // Handle 0; then no mask, number 0 and reserved bytes; the rest is not ours.
    assert_eq!(
        response,
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]
    );
    assert_eq!(file.command(4, &0u32.to_ne_bytes(), 0), Ok(()));
    assert_eq!(file.command(4, &0u32.to_ne_bytes(), 0), Err(libc::ENOENT));
}

#[test]
fn extended_commands_have_their_own_header() {
    let file = opened();
    let mut response = [0u8; 304 + 24];
    let query = |provider_out: u16, out: u16, addr: u64, comp_mask: u32| {
        let mut bytes = 0x8000_0001u32.to_ne_bytes().to_vec();
        bytes.extend_from_slice(&1u16.to_ne_bytes());
        bytes.extend_from_slice(&out.to_ne_bytes());
        bytes.extend_from_slice(&addr.to_ne_bytes());
        bytes.extend_from_slice(&[0, 0]);
        bytes.extend_from_slice(&provider_out.to_ne_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&comp_mask.to_ne_bytes());
        bytes.extend_from_slice(&[0; 4]);
        file.write(&bytes)
    };
    let addr = response.as_mut_ptr() as u64;
    assert_eq!(query(3, 38, addr, 0), Ok(()));
    let driver: [u8; 8] = response[304 + 4..304 + 12].try_into().unwrap();
    assert_eq!(
        driver,
        [0, 16, 0, 0, 0, 128, 0, 0],
        "4096 sends, 32768 receives"
    );
    assert_eq!(
        response[180..184],
        304u32.to_ne_bytes(),
        "the length of the answer"
    );
    assert_eq!(query(3, 38, addr, 1), Err(libc::EINVAL));
    assert_eq!(query(3, 38, 0, 0), Err(libc::EINVAL));
    assert_eq!(query(0, 0, addr, 0), Err(libc::EINVAL));
    assert_eq!(query(3, 20, addr, 0), Ok(()), "a short answer is cut");
    assert_eq!(query(3, 38, 64, 0), Err(libc::EFAULT));
}

#[test]
fn a_context_that_can_t_be_told_of_does_not_exist() {
    let file = File::closed(Options::default());
    let descriptors = || file.process.fds.all().len();
    let before = descriptors();
    let mut request = 64u64.to_ne_bytes().to_vec();
    request.extend_from_slice(&3u64.to_ne_bytes());
    assert_eq!(file.command(0, &request, 8), Err(libc::EFAULT));
    let both_flags = 3u64;
    let mut attrs = [data(0x1000, &both_flags), attr(0, 4, 64)];
    assert_eq!(file.ioctl(0, 3, &mut attrs), Err(libc::EFAULT));
    assert_eq!((file.count("context"), descriptors()), (0, before));
    file.open();
    assert_eq!(file.count("context"), 1);
}
