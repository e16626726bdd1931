//! What the dynamically loaded libraries offer. Needs no device.

use std::ffi::CStr;

#[test]
fn the_device_list_can_be_asked_for() {
    let mut count = -1;
    // SAFETY: `count` is valid for the call; the list is freed once, with the names' last use
    // before it.
    unsafe {
        let list = efa_sys::ibv_get_device_list(&mut count);
        if list.is_null() {
            // A kernel without RDMA support.
            return;
        }
        for i in 0..usize::try_from(count).unwrap() {
            let name = efa_sys::ibv_get_device_name(*list.add(i));
            assert!(!CStr::from_ptr(name).to_bytes().is_empty());
        }
        efa_sys::ibv_free_device_list(list);
    }
}

#[test]
fn newer_functions_are_found_by_their_version() {
    // Refers to libefa strongly, so that the linker keeps it.
    let anchor = efa_sys::efadv_query_device as *const () as usize;
    assert_ne!(anchor, 0);
    let version = efa_sys::efa_symbol_version();
    assert!(
        version >= 2,
        "rdma-core 44 has EFA_1.2 already, found EFA_1.{version}"
    );
    for (name, since, present) in efa_sys::optional().list() {
        let since: u32 = since.rsplit('.').next().unwrap().parse().unwrap();
        assert_eq!(
            present,
            since <= version,
            "{name} of EFA_1.{since} with EFA_1.{version}"
        );
    }
}

#[test]
fn text_for_a_status_comes_from_the_library() {
    // SAFETY: the function returns a static string for any value.
    let text = unsafe { CStr::from_ptr(efa_sys::ibv_wc_status_str(efa_sys::IBV_WC_SUCCESS)) };
    assert_eq!(text.to_str(), Ok("success"));
}
