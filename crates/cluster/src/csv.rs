//! Rows of comma-separated values (RFC 4180): a quoted field may contain commas, doubled quotes and line feeds.
//!
//! **Invariants:** quoted text never becomes a row of its own; the size of a row is limited; no bytes cause a panic.
//! The rows do not depend on how the reader cuts its bytes.

use crate::Error;
use std::io::BufRead;

/// Size of the longest row, in bytes; a longer one is skipped.
pub(crate) const ROW_BYTES_MAX: usize = 1 << 16;

/// The byte order mark with which spreadsheets begin a file.
const MARK: [u8; 3] = [0xef, 0xbb, 0xbf];

/// The position of a byte.
#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    /// Only blanks of the field so far.
    Begin,
    Plain,
    Quoted,
    /// After a quote within quotes: the closing quote, or the first of two.
    Quote,
}

/// Why a row is unusable.
pub(crate) type Wrong = &'static str;

/// Reads rows.
pub(crate) struct Rows<R> {
    reader: R,
    text: Vec<u8>,
    /// The end of each field but the last in `text`.
    ends: Vec<usize>,
    fields: Vec<String>,
    line: usize,
    /// Number of lines of the last row, including a last line of the file without a line feed.
    row_lines: usize,
    bytes: u64,
    /// Whether the last row ended with a line feed.
    is_whole: bool,
    /// Number of bytes of the mark that have arrived; all of them, once anything else has.
    mark: usize,
}

impl<R: BufRead> Rows<R> {
    pub(crate) fn new(reader: R) -> Self {
        Self {
            reader,
            text: Vec::new(),
            ends: Vec::new(),
            fields: Vec::new(),
            line: 0,
            row_lines: 0,
            bytes: 0,
            is_whole: false,
            mark: 0,
        }
    }

    /// Creates a reader that starts in the middle of a file.
    pub(crate) fn behind(reader: R) -> Self {
        Self {
            mark: MARK.len(),
            ..Self::new(reader)
        }
    }

    /// Returns the number of the line with which the last row ended.
    pub(crate) fn line(&self) -> usize {
        self.line
    }

    /// Returns the number of the line with which the last row began.
    pub(crate) fn begin(&self) -> usize {
        self.line + usize::from(!self.is_whole) + 1 - self.row_lines
    }

    /// Returns the fields of the last row, if it was usable.
    pub(crate) fn fields(&self) -> &[String] {
        &self.fields
    }

    /// Returns whether the last row ended with a line feed: otherwise the row may be incomplete.
    pub(crate) fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// Returns the number of lines of the last row: after a stray quote several lines may be one row.
    pub(crate) fn row_lines(&self) -> usize {
        self.row_lines
    }

    /// Returns the number of bytes of all complete rows and empty lines that were read.
    pub(crate) fn whole_bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the fields of the next row, without blanks around them, or why the row is unusable; `None` at the end.
    /// Empty lines are skipped.
    ///
    /// # Errors
    /// The file cannot be read, or a quote does not end within the limit: what follows may be quoted.
    pub(crate) fn next_row(&mut self) -> Result<Option<Result<&[String], Wrong>>, Error> {
        loop {
            self.text.clear();
            self.ends.clear();
            let Some(wrong) = self.read()? else {
                return Ok(None);
            };
            let is_empty = self.ends.is_empty() && self.text.iter().all(u8::is_ascii_whitespace);
            if is_empty && wrong.is_none() {
                if self.is_whole {
                    continue;
                }
                return Ok(None);
            }
            if let Some(wrong) = wrong {
                return Ok(Some(Err(wrong)));
            }
            self.fields.clear();
            let mut from = 0;
            for end in self.ends.iter().copied().chain([self.text.len()]) {
                match std::str::from_utf8(&self.text[from..end]) {
                    Ok(field) => self.fields.push(field.trim().to_owned()),
                    Err(_) => return Ok(Some(Err("not UTF-8"))),
                }
                from = end;
            }
            return Ok(Some(Ok(&self.fields)));
        }
    }

    /// Reads one row into `text` and `ends`, or returns why it is unusable; `None` at the end.
    fn read(&mut self) -> Result<Option<Option<Wrong>>, Error> {
        self.is_whole = false;
        self.row_lines = 0;
        let mut is_in_line = false;
        let (mut at, mut wrong, mut has_any) = (At::Begin, None, false);
        let (mut from, mut row_bytes) = (0, 0_u64);
        let begin = self.line + 1;
        loop {
            let failed =
                |error: std::io::Error| Error::invalid("file", format!("cannot be read: {error}"));
            let buffer = self.reader.fill_buf().map_err(failed)?;
            if buffer.is_empty() {
                self.row_lines += usize::from(is_in_line);
                let is_open = at == At::Quoted;
                let wrong = if is_open {
                    Some("a quote is not closed")
                } else {
                    wrong
                };
                return Ok(has_any.then_some(wrong));
            }
            has_any = true;
            let mut used = 0;
            let mut is_over = false;
            for &byte in buffer {
                used += 1;
                if MARK.get(self.mark) == Some(&byte) {
                    self.mark += 1;
                    continue;
                }
                if self.mark < MARK.len() {
                    // A letter that begins with the same bytes as the mark.
                    self.text.extend_from_slice(&MARK[..self.mark]);
                    if self.mark > 0 {
                        at = At::Plain;
                    }
                    self.mark = MARK.len();
                }
                is_in_line = byte != b'\n';
                self.line += usize::from(!is_in_line);
                self.row_lines += usize::from(!is_in_line);
                if byte == b'\n' && at != At::Quoted {
                    is_over = true;
                    break;
                }
                at = match (at, byte) {
                    (At::Quoted, b'"') => At::Quote,
                    (At::Begin, b'"') => {
                        // Only blanks precede it.
                        self.text.truncate(from);
                        At::Quoted
                    }
                    (At::Begin | At::Plain | At::Quote, b',') => {
                        self.ends.push(self.text.len());
                        from = self.text.len();
                        At::Begin
                    }
                    (At::Quote, b' ' | b'\t' | b'\r') => At::Quote,
                    (At::Begin, b' ' | b'\t' | b'\r') => {
                        self.text.push(byte);
                        At::Begin
                    }
                    (At::Quote, b'"') => {
                        self.text.push(byte);
                        At::Quoted
                    }
                    (At::Quote, _) => {
                        wrong = Some("a quote inside of a field");
                        At::Plain
                    }
                    (At::Begin | At::Plain, _) => {
                        self.text.push(byte);
                        At::Plain
                    }
                    (At::Quoted, _) => {
                        self.text.push(byte);
                        At::Quoted
                    }
                };
                if self.text.len() + self.ends.len() > ROW_BYTES_MAX {
                    if at == At::Quoted {
                        let wrong = "a quote that does not end within 64 KiB";
                        return Err(Error::malformed(begin, wrong));
                    }
                    wrong = Some("a line of more than 64 KiB");
                    self.text.clear();
                    self.ends.clear();
                    from = 0;
                }
            }
            self.reader.consume(used);
            row_bytes += used as u64;
            if is_over {
                self.bytes += row_bytes;
                self.is_whole = true;
                return Ok(Some(wrong));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::BufReader;

    fn rows(text: &[u8], piece: usize) -> Result<Vec<Result<Vec<String>, Wrong>>, Error> {
        let mut rows = Rows::new(BufReader::with_capacity(piece, text));
        let mut all = Vec::new();
        while let Some(row) = rows.next_row()? {
            all.push(row.map(<[String]>::to_vec));
        }
        Ok(all)
    }

    fn fields(fields: &[&str]) -> Result<Vec<String>, Wrong> {
        Ok(fields.iter().map(|field| (*field).to_owned()).collect())
    }

    #[test]
    fn a_field_in_quotes_may_hold_commas_quotes_and_newlines() {
        let text = "time_s,note,watts\r\n1,\"a,3,b\",5\n\n2,\"a\n3,x,999\n\", 6 \n\
            3,\"say \"\"no\"\"\",7\n4, \"b\" ,8\n";
        for piece in [1, 2, 7, 100] {
            assert_eq!(
                rows(text.as_bytes(), piece).unwrap(),
                [
                    fields(&["time_s", "note", "watts"]),
                    fields(&["1", "a,3,b", "5"]),
                    fields(&["2", "a\n3,x,999", "6"]),
                    fields(&["3", "say \"no\"", "7"]),
                    fields(&["4", "b", "8"]),
                ]
            );
        }
    }

    #[test]
    fn a_quote_that_is_none_costs_its_row_or_nothing() {
        let found = rows(b"1,5\" pipe,2\n2,\"a\"b,3\n3,c,4\n4,\"d\n5,e,6\n", 100).unwrap();
        assert_eq!(
            found,
            [
                fields(&["1", "5\" pipe", "2"]),
                Err("a quote inside of a field"),
                fields(&["3", "c", "4"]),
                Err("a quote is not closed"),
            ]
        );
        let long = [b"1,2\n".as_slice(), &[b'7'; 70_000], b"\n3,\xff\n5,6\n"].concat();
        let found = rows(&long, 100).unwrap();
        assert_eq!(
            found,
            [
                fields(&["1", "2"]),
                Err("a line of more than 64 KiB"),
                Err("not UTF-8"),
                fields(&["5", "6"]),
            ]
        );
        // It is unknown which of the following bytes are quoted.
        let open = [b"1,2\n3,\"".as_slice(), &[b'\n'; 70_000], b"4,5\n"].concat();
        assert!(rows(&open, 100).is_err());
    }

    #[test]
    fn a_mark_of_the_encoding_is_no_part_of_a_field() {
        let found = rows(b"\xef\xbb\xbf\"time_ms\",\"value\"\n1,2\n", 2).unwrap();
        assert_eq!(found, [fields(&["time_ms", "value"]), fields(&["1", "2"])]);
        // These begin with the first one or two bytes of the mark.
        for name in ["\u{ff7c}", "\u{fec0}"] {
            let text = format!("{name},value\n1,2\n");
            let found = rows(text.as_bytes(), 1).unwrap();
            assert_eq!(found, [fields(&[name, "value"]), fields(&["1", "2"])]);
        }
    }

    #[test]
    fn a_row_without_a_line_feed_is_not_whole() {
        let mut rows = Rows::new(b"1,2\n\n3,4".as_slice());
        assert!(rows.next_row().unwrap().is_some());
        assert_eq!((rows.whole_bytes(), rows.is_whole()), (4, true));
        assert!(rows.next_row().unwrap().is_some());
        assert_eq!(
            (rows.whole_bytes(), rows.line(), rows.is_whole()),
            (5, 2, false)
        );
        assert!(rows.next_row().unwrap().is_none());
    }

    proptest! {
        #[test]
        fn quoted_fields_are_read_as_written(
            table in proptest::collection::vec(proptest::collection::vec("[a\",\n ;]{0,6}x", 1..4), 0..6),
            piece in 1_usize..9,
        ) {
            let field = |field: &String| format!("\"{}\"", field.replace('"', "\"\""));
            let line = |row: &Vec<String>| row.iter().map(field).collect::<Vec<_>>().join(",") + "\n";
            let text: String = table.iter().map(line).collect();
            let found: Vec<Vec<String>> =
                rows(text.as_bytes(), piece).unwrap().into_iter().map(Result::unwrap).collect();
            let trimmed = |row: &Vec<String>| row.iter().map(|field| field.trim().to_owned()).collect();
            let expected: Vec<Vec<String>> = table.iter().map(trimmed).collect();
            prop_assert_eq!(found, expected);
        }

        #[test]
        fn any_bytes_are_rows_or_none(text in proptest::collection::vec(any::<u8>(), 0..200), piece in 1_usize..9) {
            prop_assert_eq!(rows(&text, piece), rows(&text, 1_000));
        }
    }
}
