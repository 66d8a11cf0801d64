//! The scenarios of the crash suite in which one call writes several pieces.

use flash::PAYLOAD_BYTES;

use super::crash::Scenario;
use super::operation::Operation;
use super::pieces::Pieces;
use super::scenarios::{append, append_later, bytes, create, replace, scenario};

const BLOCK: usize = PAYLOAD_BYTES;

/// Returns pieces at these offsets, of these lengths in bytes.
fn pieces(places: &[(usize, usize)], tag: u8) -> Pieces {
    let piece = |(offset, length): &(usize, usize)| (*offset as u64, bytes(*length, tag, 13));
    places.iter().map(piece).collect()
}

fn write_pieces(name: &str, places: &[(usize, usize)], tag: u8) -> Operation {
    Operation::WritePiecesAtOnce(name.to_owned(), pieces(places, tag))
}

fn write_pieces_later(name: &str, places: &[(usize, usize)], tag: u8) -> Operation {
    Operation::WritePiecesNosync(name.to_owned(), pieces(places, tag))
}

/// Scenarios with pieces written at once, and unsynced.
pub fn in_pieces() -> Vec<Scenario> {
    vec![
        scenario(
            "pieces at once",
            384,
            4,
            vec![replace("a", 60_000, 1), replace("b", 100, 2)],
            vec![
                write_pieces("a", &[(0, 28), (20_000, 28), (50_000, 28)], 3),
                write_pieces("a", &[(BLOCK - 1, 2), (59_990, 10)], 4),
                // One block too many.
                write_pieces("a", &[(BLOCK - 1, 2), (5 * BLOCK - 1, 2)], 5),
                append("a", 10, 6),
                // First the bytes that make the file longer, then all changes within it.
                write_pieces("a", &[(100, 28), (59_990, 4096), (30_000, 28)], 7),
                write_pieces("b", &[(10, 28), (5000, 28)], 8),
                append_later("b", 3000, 9),
                write_pieces("a", &[(8000, 28), (40_000, 28)], 10),
                // Nothing changes within the file.
                write_pieces("b", &[(8028, 500)], 11),
                write_pieces("b", &[(0, 28)], 12),
                Operation::Reopen,
                write_pieces("a", &[(0, 28), (20_000, 28), (50_000, 28)], 13),
            ],
        ),
        scenario(
            "unsynced pieces",
            384,
            4,
            vec![replace("a", 60_000, 1), create("log")],
            vec![
                write_pieces_later("a", &[(0, 28), (9000, 28), (20_000, 28), (50_000, 28)], 2),
                append_later("log", 5000, 3),
                write_pieces_later("log", &[(5000, 3000), (8500, 100)], 4),
                write_pieces_later("log", &[(8600, 1), (0, 1), (4990, 20)], 5),
                Operation::Sync,
                write_pieces_later("a", &[(100, 40_000), (59_000, 9000)], 6),
                write_pieces_later("log", &[(20_000, 9000), (8601, 4096)], 7),
                Operation::Reopen,
                write_pieces_later("log", &[(30_000, 100)], 8),
            ],
        ),
    ]
}
