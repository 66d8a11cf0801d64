//! The body of the fuzz target of learned actions. A test of `stream` includes this file too and runs the committed
//! corpus through it.

use stream::predict::none::NonePredictor;
use stream::predict::paper::{PaperPredictor, PaperSettings};
use stream::predict::task::{TaskPredictor, TaskSettings};
use stream::predict::{Catalogue, Predictor, Push};
use stream::wire::HeldBlocks;
use stream::{BlockAt, ContentId, FileId, SEGMENT_BLOCKS, Token};

/// Files of the version: `a` to `d`, contents 0x00.. to 0x03.., of 1, 8, 64 and 512 blocks.
struct Version([[u8; 1]; 4]);

const VERSION: Version = Version([*b"a", *b"b", *b"c", *b"d"]);

/// Number of starts, and of requests of each.
const STARTS: u8 = 3;

const BYTES_MAX: usize = 1 << 20;

impl Version {
    fn of(number: u32) -> (ContentId, u32) {
        (ContentId([number as u8; 32]), 8_u32.pow(number))
    }
}

impl Catalogue for Version {
    fn describe(&self, file: FileId) -> Option<(&[u8], ContentId, u32)> {
        let path = self.0.get(file.0 as usize)?;
        let (content, blocks) = Self::of(file.0);
        Some((path, content, blocks))
    }

    fn find(&self, path: &[u8]) -> Option<(FileId, ContentId, u32)> {
        let number = self.0.iter().position(|name| name == path)? as u32;
        let (content, blocks) = Self::of(number);
        Some((FileId(number), content, blocks))
    }
}

/// A file of actions. The first byte selects the mode that reads it and whether its checksum is made valid. Accepted
/// actions name only blocks of the version, and are prefetched within the limits of a message. They are equal after
/// writing and reading. Refused actions leave nothing.
pub fn stream_actions(data: &[u8]) {
    let Some((first, rest)) = data.split_first() else {
        return;
    };
    if rest.len() > BYTES_MAX {
        return;
    }
    let make = || -> Box<dyn Predictor> {
        match first % 3 {
            0 => Box::new(NonePredictor),
            1 => Box::new(TaskPredictor::new(TaskSettings::default())),
            _ => Box::new(PaperPredictor::new(PaperSettings::default())),
        }
    };
    let mut bytes = rest.to_vec();
    if first & 0x80 != 0
        && let Some(payload) = bytes.len().checked_sub(4)
    {
        let checksum = crc32c::crc32c(&bytes[..payload]);
        bytes[payload..].copy_from_slice(&checksum.to_le_bytes());
    }
    let mut predictor = make();
    if predictor.load(&bytes, &VERSION).is_err() {
        assert!(predictor.actions().is_empty());
        return;
    }
    let saved = predictor.save(&VERSION);
    let mut again = make();
    assert_eq!(again.load(&saved, &VERSION), Ok(()));
    assert_eq!(again.actions(), predictor.actions());
    assert_eq!(again.save(&VERSION), saved);
    use_it(&mut *predictor);
}

fn use_it(predictor: &mut dyn Predictor) {
    for at in predictor
        .actions()
        .iter()
        .flat_map(|action| &action.segments)
        .flatten()
    {
        exists(*at);
    }
    for task in 0..4 {
        for start in 0..STARTS {
            let mut token = [start; 16];
            token[0] = task as u8;
            let (token, now_ms) = (Token(token), u64::from(start) * 100_000);
            let begun = predictor.begin(token, FileId(task), &HeldBlocks::default(), now_ms);
            check(&begun.push);
            let asked: Vec<BlockAt> = predictor
                .actions()
                .iter()
                .flat_map(|action| action.segments.iter().flatten().copied())
                .step_by(1 + usize::from(start))
                .take(64)
                .collect();
            for at in &asked {
                check(&predictor.request(token, *at, now_ms));
            }
            predictor.trace(token, &asked, now_ms);
            predictor.tick(now_ms + 5_000);
            predictor.end(token, start == 1, true, now_ms + 6_000);
        }
    }
    let saved = predictor.save(&VERSION);
    assert_eq!(predictor.load(&saved, &VERSION), Ok(()));
    assert_eq!(predictor.save(&VERSION), saved);
    for task in 0..4 {
        predictor.forget(FileId(task));
    }
    assert!(predictor.actions().is_empty());
}

fn check(push: &Push) {
    match push {
        Push::Nothing | Push::Stop => {}
        Push::Blocks(blocks) => piece(blocks),
        Push::Plan(plan) => plan.pieces.iter().for_each(|blocks| piece(blocks)),
    }
}

fn piece(blocks: &[BlockAt]) {
    assert!((1..=SEGMENT_BLOCKS as usize).contains(&blocks.len()));
    blocks.iter().for_each(|at| exists(*at));
}

fn exists(at: BlockAt) {
    assert!(at.index < Version::of(at.file.0).1);
}
