//! Parts of a length.

use std::ops::{Bound, Range, RangeBounds};

/// The bytes of `range`, if there are `length` bytes.
///
/// # Errors
/// Start and end of a range that is not within them, or ends before it starts.
#[inline]
pub(crate) fn within(range: impl RangeBounds<u64>, length: u64) -> Result<Range<u64>, (u64, u64)> {
    let start = match range.start_bound() {
        Bound::Included(&start) => Some(start),
        Bound::Excluded(&start) => start.checked_add(1),
        Bound::Unbounded => Some(0),
    };
    let end = match range.end_bound() {
        Bound::Included(&end) => end.checked_add(1),
        Bound::Excluded(&end) => Some(end),
        Bound::Unbounded => Some(length),
    };
    match (start, end) {
        (Some(start), Some(end)) if start <= end && end <= length => Ok(start..end),
        (start, end) => Err((start.unwrap_or(u64::MAX), end.unwrap_or(u64::MAX))),
    }
}
