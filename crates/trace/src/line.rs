//! Lines of bounded length and the fields of a CSV line, from untrusted bytes.

use std::io::{self, BufRead};

/// One step of [`LineReader::next_line`].
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line<'a> {
    /// A line without its terminator.
    Text(&'a [u8]),
    /// A line longer than the limit; its bytes were skipped, not kept.
    TooLong,
}

/// Reads lines of at most `line_bytes_max` bytes; memory never grows beyond that.
pub(super) struct LineReader<R> {
    reader: R,
    line: Vec<u8>,
    line_bytes_max: usize,
    lines: u64,
    bytes_left: u64,
}

/// Why [`LineReader::next_line`] stopped.
#[derive(Debug)]
pub(super) enum LineError {
    /// The reader failed.
    Io(io::Error),
    /// The source is longer than its limit in bytes.
    SourceTooLarge,
}

impl<R: BufRead> LineReader<R> {
    /// `source_bytes_max` bounds the whole source after decompression.
    pub(super) fn new(reader: R, line_bytes_max: usize, source_bytes_max: u64) -> Self {
        Self {
            reader,
            line: Vec::with_capacity(line_bytes_max),
            line_bytes_max,
            lines: 0,
            bytes_left: source_bytes_max,
        }
    }

    /// Lines read so far.
    pub(super) fn lines(&self) -> u64 {
        self.lines
    }

    /// Returns the next line, or `None` at the end of the source. A last line without a terminator counts as a line.
    pub(super) fn next_line(&mut self) -> Result<Option<Line<'_>>, LineError> {
        self.line.clear();
        let mut too_long = false;
        let mut seen_any = false;
        loop {
            let available = match self.reader.fill_buf() {
                Ok(bytes) => bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(LineError::Io(error)),
            };
            if available.is_empty() {
                if !seen_any {
                    return Ok(None);
                }
                break;
            }
            seen_any = true;
            let end = available.iter().position(|byte| *byte == b'\n');
            let content = &available[..end.unwrap_or(available.len())];
            if !too_long && self.line.len() + content.len() <= self.line_bytes_max {
                self.line.extend_from_slice(content);
            } else {
                too_long = true;
            }
            let consumed = content.len() + usize::from(end.is_some());
            self.reader.consume(consumed);
            match self.bytes_left.checked_sub(consumed as u64) {
                Some(left) => self.bytes_left = left,
                None => return Err(LineError::SourceTooLarge),
            }
            if end.is_some() {
                break;
            }
        }
        self.lines += 1;
        if too_long {
            return Ok(Some(Line::TooLong));
        }
        if self.line.last() == Some(&b'\r') {
            self.line.pop();
        }
        Ok(Some(Line::Text(&self.line)))
    }
}

/// Splits one CSV line into exactly `N` fields; a field may be in double quotes, with `""` for a quote. `None` if the
/// number of fields differs or the quoting is broken.
pub(super) fn fields<const N: usize>(line: &str) -> Option<[String; N]> {
    let mut fields = std::array::from_fn::<String, N, _>(|_| String::new());
    let mut count = 0;
    let mut rest = Some(line);
    while let Some(text) = rest {
        if count == N {
            return None;
        }
        let (value, next) = one_field(text)?;
        fields[count] = value;
        count += 1;
        rest = next;
    }
    (count == N).then_some(fields)
}

/// Returns the first field of `text` and what follows its comma, if there is a comma.
fn one_field(text: &str) -> Option<(String, Option<&str>)> {
    let Some(mut rest) = text.strip_prefix('"') else {
        return Some(match text.split_once(',') {
            Some((field, next)) => (plain(field)?, Some(next)),
            None => (plain(text)?, None),
        });
    };
    let mut value = String::new();
    loop {
        let (part, after) = rest.split_once('"')?;
        value.push_str(part);
        if let Some(more) = after.strip_prefix('"') {
            value.push('"');
            rest = more;
        } else if after.is_empty() {
            return Some((value, None));
        } else {
            return Some((value, Some(after.strip_prefix(',')?)));
        }
    }
}

/// Returns an unquoted field; it must not contain a quote.
fn plain(field: &str) -> Option<String> {
    (!field.contains('"')).then(|| field.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(source: &[u8], line_bytes_max: usize) -> Vec<Option<Vec<u8>>> {
        // With a one-byte buffer, every boundary is between two reads.
        let mut reader = LineReader::new(
            io::BufReader::with_capacity(1, source),
            line_bytes_max,
            1 << 20,
        );
        let mut lines = Vec::new();
        while let Some(line) = reader.next_line().unwrap() {
            lines.push(match line {
                Line::Text(text) => Some(text.to_vec()),
                Line::TooLong => None,
            });
        }
        lines
    }

    #[test]
    fn lines_keep_their_limit_and_the_next_one_is_whole() {
        assert_eq!(
            all(b"abc\r\n12345678\n\nlast", 4),
            vec![
                Some(b"abc".to_vec()),
                None,
                Some(Vec::new()),
                Some(b"last".to_vec())
            ]
        );
        assert!(all(b"", 4).is_empty());
    }

    #[test]
    fn a_source_over_its_limit_stops() {
        let mut reader = LineReader::new(&b"12\n34\n"[..], 10, 4);
        assert_eq!(reader.next_line().unwrap(), Some(Line::Text(b"12")));
        assert!(matches!(reader.next_line(), Err(LineError::SourceTooLarge)));
    }

    #[test]
    fn fields_are_split_with_and_without_quotes() {
        assert_eq!(fields::<3>("a,\"b, c\",d").unwrap(), ["a", "b, c", "d"]);
        assert_eq!(
            fields::<2>("\"say \"\"hi\"\"\",").unwrap(),
            ["say \"hi\"", ""]
        );
        assert_eq!(fields::<2>("a,b,c"), None);
        assert_eq!(fields::<2>("a"), None);
        assert_eq!(fields::<2>("a,\"b"), None);
        assert_eq!(fields::<2>("a,\"b\"c"), None);
        assert_eq!(fields::<2>("a,b\"c"), None);
    }
}
