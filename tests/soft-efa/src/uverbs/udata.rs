//! The driver's own part of a request: zero-extended where it is shorter than ours, refused where
//! it says something that we don't know.

use zerocopy::{FromBytes, IntoBytes};

/// The driver's request, of which the first `needed` bytes must be there.
pub(crate) fn driver_request<T>(input: &[u8], needed: usize) -> Result<T, i32>
where
    T: FromBytes + IntoBytes + Default,
{
    if input.len() < needed {
        return Err(libc::EINVAL);
    }
    let known = input.len().min(size_of::<T>());
    must_be_clear(&input[known..])?;
    let mut request = T::default();
    request.as_mut_bytes()[..known].copy_from_slice(&input[..known]);
    Ok(request)
}

/// Refuses anything but zeros.
pub(crate) fn must_be_clear(input: &[u8]) -> Result<(), i32> {
    if input.iter().all(|byte| *byte == 0) {
        Ok(())
    } else {
        Err(libc::EINVAL)
    }
}

/// The core's request: shorter ones are zero-extended, longer ones must end in zeros.
pub(crate) fn core_request<T>(input: &[u8]) -> Result<T, i32>
where
    T: FromBytes + IntoBytes + Default,
{
    let known = input.len().min(size_of::<T>());
    must_be_clear(&input[known..]).map_err(|_| libc::EOPNOTSUPP)?;
    let mut request = T::default();
    request.as_mut_bytes()[..known].copy_from_slice(&input[..known]);
    Ok(request)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uverbs::abi::EfaCreateCq;

    #[test]
    fn requests_of_other_lengths_are_accepted_if_they_say_the_same() {
        let mut bytes = [0u8; 20];
        bytes[4] = 32;
        assert_eq!(
            driver_request::<EfaCreateCq>(&bytes[..10], 10)
                .unwrap()
                .cq_entry_size,
            32
        );
        assert_eq!(
            driver_request::<EfaCreateCq>(&bytes, 10)
                .unwrap()
                .cq_entry_size,
            32
        );
        assert_eq!(
            driver_request::<EfaCreateCq>(&bytes[..9], 10).unwrap_err(),
            libc::EINVAL
        );
        bytes[19] = 1;
        assert_eq!(
            driver_request::<EfaCreateCq>(&bytes, 10).unwrap_err(),
            libc::EINVAL
        );
        assert_eq!(
            core_request::<EfaCreateCq>(&bytes).unwrap_err(),
            libc::EOPNOTSUPP
        );
    }
}
