//! What this program and its agent in a guest say to each other over a serial line.

use std::io::{self, Read, Write};

use serde_json::{Value, json};

/// Bytes that a frame carries at most.
const MOST: usize = 1 << 20;

/// What a frame is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Guest: the agent is there.
    Ready = 1,
    /// Host: run a program; the body is a [`Program`]'s JSON.
    Run = 2,
    /// Guest: standard output of a program.
    Output = 3,
    /// Guest: standard error of a program.
    Error = 4,
    /// Guest: a program has ended; the body is its wait status, 4 bytes.
    Ended = 5,
    /// Host: a signal for a program; the body is its number, 4 bytes.
    Signal = 6,
    /// Host: bytes for a program's standard input; none are its end.
    Input = 7,
    /// Guest: a line for the devices' server. The number is the asker's.
    Ask = 8,
    /// Host: the answer.
    Answer = 9,
    /// Guest: a program can't be started; the body says why.
    Failed = 10,
}

impl Kind {
    const ALL: [Self; 10] = [
        Self::Ready,
        Self::Run,
        Self::Output,
        Self::Error,
        Self::Ended,
        Self::Signal,
        Self::Input,
        Self::Ask,
        Self::Answer,
        Self::Failed,
    ];
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// What it is about.
    pub kind: Kind,
    /// Which program, or which asker.
    pub id: u32,
    /// The rest.
    pub body: Vec<u8>,
}

impl Frame {
    /// A message.
    pub fn new(kind: Kind, id: u32, body: impl Into<Vec<u8>>) -> Self {
        let body = body.into();
        Self { kind, id, body }
    }

    /// Writes it.
    pub fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let mut bytes = vec![self.kind as u8];
        bytes.extend_from_slice(&self.id.to_le_bytes());
        bytes.extend_from_slice(&(self.body.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&self.body);
        to.write_all(&bytes)
    }

    /// Reads one; `None` at the end.
    pub fn read(from: &mut impl Read) -> io::Result<Option<Self>> {
        let mut header = [0; 9];
        match from.read_exact(&mut header) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            other => other?,
        }
        let word = |at: usize| {
            u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        let kind = Kind::ALL.into_iter().find(|kind| *kind as u8 == header[0]);
        let length = word(5) as usize;
        let (Some(kind), true) = (kind, length <= MOST) else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the guest's agent says something that nobody understands",
            ));
        };
        let mut body = vec![0; length];
        from.read_exact(&mut body)?;
        Ok(Some(Self {
            kind,
            id: word(1),
            body,
        }))
    }

    /// The number in a body of 4 bytes.
    pub fn number(&self) -> Option<i32> {
        Some(i32::from_le_bytes(self.body[..].try_into().ok()?))
    }
}

/// A program to run in a guest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// Its name or path, and its arguments.
    pub words: Vec<String>,
    /// Its environment, all of it.
    pub environment: Vec<(String, String)>,
    /// The folder to run it in.
    pub folder: String,
    /// It gets an input; otherwise there is nothing to read.
    pub input: bool,
}

impl Program {
    /// As it goes over the line.
    pub fn to_bytes(&self) -> Vec<u8> {
        json!({
            "words": self.words,
            "environment": self.environment.iter().map(|(n, v)| json!([n, v])).collect::<Vec<_>>(),
            "folder": self.folder,
            "input": self.input,
        })
        .to_string()
        .into_bytes()
    }

    /// The other way round.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let value: Value = serde_json::from_slice(bytes).ok()?;
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let words = value["words"].as_array()?;
        let environment = value["environment"].as_array()?;
        Some(Self {
            words: words.iter().map(text).collect::<Option<_>>()?,
            environment: environment
                .iter()
                .map(|pair| Some((text(&pair[0])?, text(&pair[1])?)))
                .collect::<Option<_>>()?,
            folder: text(&value["folder"])?,
            input: value["input"].as_bool()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_and_programs_arrive_as_they_were_sent() {
        let program = Program {
            words: vec!["sh".into(), "-c".into(), "echo \"ä\n\"".into()],
            environment: vec![("A".into(), "b=c".into())],
            folder: "/".into(),
            input: true,
        };
        let sent = Frame::new(Kind::Run, 7, program.to_bytes());
        let mut line = Vec::new();
        sent.write(&mut line).unwrap();
        Frame::new(Kind::Ended, 7, 256i32.to_le_bytes())
            .write(&mut line)
            .unwrap();
        let mut line = &line[..];
        let got = Frame::read(&mut line).unwrap().unwrap();
        assert_eq!(Program::from_bytes(&got.body), Some(program));
        assert_eq!(Frame::read(&mut line).unwrap().unwrap().number(), Some(256));
        assert_eq!(Frame::read(&mut line).unwrap(), None);
        assert!(Frame::read(&mut &[99u8; 20][..]).is_err());
    }
}
