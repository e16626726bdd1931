//! The result, for people.

use std::time::Duration;

/// One transfer.
pub struct Row {
    /// `put` or `get`.
    pub operation: &'static str,
    /// Bytes.
    pub bytes: u64,
    /// Requests to the device.
    pub requests: u64,
    /// From the call to its completion.
    pub time: Duration,
    /// Whether both sides found every byte right.
    pub verified: bool,
}

/// The line above the rows.
pub fn header() -> String {
    line(["", "size", "requests", "time", "GB/s", ""].map(str::to_owned))
}

impl Row {
    /// The row as a line.
    pub fn line(&self) -> String {
        let rate = self.bytes as f64 / self.time.as_secs_f64().max(1e-9) / 1e9;
        line([
            self.operation.to_owned(),
            size(self.bytes),
            self.requests.to_string(),
            time(self.time),
            format!("{rate:.3}"),
            if self.verified {
                "verified"
            } else {
                "MISMATCH"
            }
            .to_owned(),
        ])
    }
}

fn line(cells: [String; 6]) -> String {
    let [operation, size, requests, time, rate, verified] = cells;
    format!("{operation:<4} {size:>8} {requests:>9} {time:>11} {rate:>8}  {verified}")
        .trim_end()
        .to_owned()
}

/// Bytes in the largest unit that leaves a whole number.
fn size(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    for (shift, unit) in units {
        if bytes >> shift > 0 && bytes.trailing_zeros() >= shift {
            return format!("{} {unit}", bytes >> shift);
        }
    }
    format!("{bytes} B")
}

fn time(time: Duration) -> String {
    let micros = time.as_secs_f64() * 1e6;
    if micros < 1e3 {
        format!("{micros:.0} µs")
    } else if micros < 1e6 {
        format!("{:.1} ms", micros / 1e3)
    } else {
        format!("{:.2} s", micros / 1e6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_exact() {
        assert_eq!(size(1), "1 B");
        assert_eq!(size(4096), "4 KiB");
        assert_eq!(size(64 << 20), "64 MiB");
        assert_eq!(size(1025), "1025 B");
    }

    #[test]
    fn a_wrong_byte_shows() {
        let mut row = Row {
            operation: "put",
            bytes: 1 << 30,
            requests: 2,
            time: Duration::from_secs(1),
            verified: true,
        };
        assert_eq!(
            row.line(),
            "put     1 GiB         2      1.00 s    1.074  verified"
        );
        row.verified = false;
        assert!(row.line().ends_with("MISMATCH"));
        assert_eq!(
            header().find("GB/s"),
            row.line().find("1.074").map(|at| at + 1)
        );
    }
}
