//! The first file system of a guest: a cpio archive that the kernel unpacks.

/// An archive in the "newc" format.
#[derive(Default)]
pub struct Initramfs {
    bytes: Vec<u8>,
    entries: u32,
}

const FILE: u32 = 0o100_000;
const DIRECTORY: u32 = 0o040_000;
const CHARACTERS: u32 = 0o020_000;

impl Initramfs {
    /// A directory.
    pub fn directory(&mut self, path: &str) {
        self.entry(path, DIRECTORY | 0o755, (0, 0), &[]);
    }

    /// A file.
    pub fn file(&mut self, path: &str, executable: bool, bytes: &[u8]) {
        let mode = if executable { 0o755 } else { 0o644 };
        self.entry(path, FILE | mode, (0, 0), bytes);
    }

    /// A character device.
    pub fn device(&mut self, path: &str, major: u32, minor: u32) {
        self.entry(path, CHARACTERS | 0o600, (major, minor), &[]);
    }

    fn entry(&mut self, path: &str, mode: u32, device: (u32, u32), data: &[u8]) {
        self.entries += 1;
        self.bytes.extend_from_slice(b"070701");
        let fields = [
            self.entries,
            mode,
            0,
            0,
            1,
            0,
            data.len() as u32,
            0,
            0,
            device.0,
            device.1,
            path.len() as u32 + 1,
            0,
        ];
        for field in fields {
            self.bytes
                .extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(data);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    /// The archive.
    pub fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, (0, 0), &[]);
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_aligned_and_the_last_says_so() {
        let mut archive = Initramfs::default();
        archive.directory("bin");
        archive.file("bin/x", true, b"12345");
        let bytes = archive.finish();
        assert_eq!(bytes.len() % 4, 0);
        let text = String::from_utf8_lossy(&bytes);
        assert!(text.starts_with("070701"));
        assert_eq!(text.matches("070701").count(), 3);
        assert!(text.contains("12345") && text.contains("TRAILER!!!"));
    }
}
