//! The wire messages: they round-trip, anything else is refused, and lists are as short as they should be.

use proptest::collection::{btree_map, btree_set, vec};
use proptest::option;
use proptest::prelude::*;
use stream::group::{GROUP_BLOCKS, Group, GroupAt, PROOF_VALUES_MAX};
use stream::wire::{
    Answer, BLOCKS_PER_MESSAGE_MAX, DecodeError, FrameReader, HELD_FILES_MAX, HeldBlocks,
    MANIFEST_BYTES_MAX, REQUEST_BYTES_MAX, Refusal, Request,
};
use stream::{BlockAt, BlockHash, FileId, SEGMENT_BLOCKS, Token};

fn at(file: u32, index: u32) -> BlockAt {
    let file = FileId(file);
    BlockAt { file, index }
}

fn token() -> impl Strategy<Value = Token> {
    any::<[u8; 16]>()
        .prop_filter("zero is no task's token", |bytes| *bytes != [0; 16])
        .prop_map(Token)
}

/// Typical numbers: mostly small, sometimes the largest.
fn number() -> impl Strategy<Value = u32> {
    prop_oneof![8 => 0..2000u32, 1 => any::<u32>(), 1 => u32::MAX - 40..=u32::MAX]
}

/// Runs of neighbours in several files, in any order.
fn blocks(min: usize, max: usize) -> impl Strategy<Value = Vec<BlockAt>> {
    let run = (number(), number(), 1..20u32);
    vec(run, min..60).prop_map(move |runs| {
        runs.into_iter()
            .flat_map(|(file, first, count)| {
                (first..=first.saturating_add(count - 1)).map(move |index| at(file, index))
            })
            .take(max)
            .collect()
    })
}

fn held() -> impl Strategy<Value = HeldBlocks> {
    let runs = btree_set(0..5000u32, 1..40);
    btree_map(number(), runs, 0..20).prop_map(|files| {
        HeldBlocks::of(
            files
                .into_iter()
                .flat_map(|(file, blocks)| blocks.into_iter().map(move |index| at(file, index)))
                .collect(),
        )
    })
}

fn request() -> impl Strategy<Value = Request> {
    let id = 1..=u32::MAX;
    prop_oneof![
        (
            any::<u16>(),
            any::<[u8; 16]>(),
            option::of(any::<u64>()),
            option::of(any::<[u8; 32]>())
        )
            .prop_map(|(protocol, device, version, manifest_held)| {
                Request::Hello {
                    protocol,
                    device,
                    version,
                    manifest_held,
                }
            }),
        (token(), number(), held()).prop_map(|(token, task, held)| Request::Begin {
            token,
            task: FileId(task),
            held
        }),
        (
            id.clone(),
            option::of(token()),
            number(),
            number(),
            0..=SEGMENT_BLOCKS as u8
        )
            .prop_map(|(id, token, file, index, around)| Request::Read {
                id,
                token,
                at: at(file, index),
                around
            }),
        (id.clone(), blocks(1, BLOCKS_PER_MESSAGE_MAX))
            .prop_map(|(id, blocks)| Request::Fetch { id, blocks }),
        vec(number().prop_map(FileId), 1..200).prop_map(|files| Request::AskHashes { files }),
        blocks(1, BLOCKS_PER_MESSAGE_MAX).prop_map(|blocks| {
            let group = |at: BlockAt| GroupAt {
                file: at.file,
                group: at.index,
            };
            let groups = blocks.into_iter().map(group).collect();
            Request::AskGroups { groups }
        }),
        (id.clone(), number()).prop_map(|(id, task)| Request::AskPlan {
            id,
            task: FileId(task)
        }),
        (token(), blocks(1, BLOCKS_PER_MESSAGE_MAX))
            .prop_map(|(token, blocks)| Request::Trace { token, blocks }),
        (token(), any::<bool>(), any::<bool>()).prop_map(|(token, is_exact, has_exited)| {
            Request::End {
                token,
                is_exact,
                has_exited,
            }
        }),
        id.prop_map(|id| Request::Ping { id }),
    ]
}

fn answer() -> impl Strategy<Value = Answer> {
    let id = 1..=u32::MAX;
    let owner = option::of(token()).prop_map(|token| token.unwrap_or(Token([0; 16])));
    let bytes = || vec(any::<u8>(), 1..3000);
    let hashes = vec(any::<[u8; 32]>().prop_map(BlockHash), 0..50);
    let proof = vec(any::<[u8; 32]>(), 0..=PROOF_VALUES_MAX);
    let group = (hashes.clone(), proof).prop_map(|(hashes, proof)| Group {
        hashes: hashes.into(),
        proof: proof.into(),
    });
    prop_oneof![
        (any::<u16>(), any::<u64>(), 0..=MANIFEST_BYTES_MAX).prop_map(
            |(protocol, version, manifest_bytes)| Answer::Welcome {
                protocol,
                version,
                manifest_bytes
            }
        ),
        (0..MANIFEST_BYTES_MAX - 3000, bytes())
            .prop_map(|(offset, bytes)| Answer::Manifest { offset, bytes }),
        ((number(), number()), group).prop_map(|((file, at), group)| Answer::Group {
            at: GroupAt {
                file: FileId(file),
                group: at,
            },
            group,
        }),
        (number(), 0..1_000_000u32, hashes).prop_map(|(file, first, hashes)| Answer::Hashes {
            file: FileId(file),
            first,
            hashes
        }),
        (
            any::<u32>(),
            owner,
            blocks(1, SEGMENT_BLOCKS as usize),
            bytes()
        )
            .prop_map(|(id, token, blocks, compressed)| Answer::Blocks {
                id,
                token,
                blocks,
                compressed
            }),
        (token(), any::<u32>(), any::<bool>()).prop_map(|(token, blocks, is_audit)| {
            Answer::Begun {
                token,
                blocks,
                is_audit,
            }
        }),
        (token(), any::<bool>())
            .prop_map(|(token, was_stopped)| Answer::PrefetchDone { token, was_stopped }),
        id.clone().prop_map(|id| Answer::Fetched { id }),
        (id.clone(), any::<bool>(), blocks(0, BLOCKS_PER_MESSAGE_MAX)).prop_map(
            |(id, has_more, blocks)| Answer::Plan {
                id,
                has_more,
                blocks
            }
        ),
        (
            (any::<u32>(), option::of(token())),
            prop::sample::select(Refusal::ALL.to_vec())
        )
            .prop_map(|((id, token), reason)| Answer::Refused { id, token, reason }),
        id.prop_map(|id| Answer::Pong { id }),
    ]
}

/// Returns kind, version and payload of the single frame in these bytes.
fn parts(mut bytes: &[u8]) -> (u16, u16, Vec<u8>) {
    let mut reader = FrameReader::for_answers();
    loop {
        let taken = reader.push(bytes);
        bytes = &bytes[taken..];
        if let Some(frame) = reader.next().unwrap() {
            let parts = (frame.kind, frame.version, frame.payload.to_vec());
            assert!(bytes.is_empty() && !reader.is_within_frame());
            return parts;
        }
        assert!(taken > 0);
    }
}

/// Encodes a request in the newest version of the protocol that has it.
fn encoded(request: &Request) -> (u16, u16, Vec<u8>) {
    let mut bytes = Vec::new();
    match request {
        Request::AskHashes { .. } => request.encode_for(1, &mut bytes),
        _ => request.encode(&mut bytes),
    }
    parts(&bytes)
}

fn encoded_answer(answer: &Answer) -> (u16, u16, Vec<u8>) {
    let mut bytes = Vec::new();
    match answer {
        Answer::Hashes { .. } => answer.encode_for(1, &mut bytes),
        _ => answer.encode(&mut bytes),
    }
    parts(&bytes)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn an_encoded_request_decodes_to_itself(request in request()) {
        let (kind, version, payload) = encoded(&request);
        prop_assert_eq!(Request::decode(kind, version, &payload), Ok(request));
        // Without its last byte, or with one more, it is not the same message.
        prop_assert!(Request::decode(kind, version, &payload[..payload.len() - 1]).is_err());
        let longer = [&payload[..], &[0]].concat();
        prop_assert_eq!(Request::decode(kind, version, &longer), Err(DecodeError::Trailing));
    }

    #[test]
    fn an_encoded_answer_decodes_to_itself(answer in answer()) {
        let (kind, version, payload) = encoded_answer(&answer);
        prop_assert_eq!(Answer::decode(kind, version, &payload), Ok(answer));
    }

    /// Any bytes that decode to a message encode to the same bytes again: each message has one form.
    #[test]
    fn any_bytes_are_a_message_in_its_one_form_or_refused(
        kind in prop_oneof![0..=11u16, 0x80..=0x8c_u16],
        version in 1..=2u16,
        payload in vec(prop_oneof![3 => 0..8u8, 1 => any::<u8>()], 0..120),
    ) {
        let mut bytes = Vec::new();
        if let Ok(request) = Request::decode(kind, version, &payload) {
            request.encode_for(version, &mut bytes);
            prop_assert_eq!(parts(&bytes), (kind, version, payload));
        } else if let Ok(answer) = Answer::decode(kind, version, &payload) {
            answer.encode_for(version, &mut bytes);
            prop_assert_eq!(parts(&bytes), (kind, version, payload));
        }
    }

    #[test]
    fn a_changed_byte_is_refused_or_another_message(request in request(), place: usize, to: u8) {
        let (kind, version, mut payload) = encoded(&request);
        let place = place % payload.len();
        if payload[place] != to {
            payload[place] = to;
            prop_assert_ne!(Request::decode(kind, version, &payload), Ok(request));
        }
    }
}

#[test]
fn scattered_blocks_take_about_three_bytes_each() {
    // Like a start: three libraries, scattered blocks, sometimes neighbours.
    let mut blocks = Vec::new();
    for step in 0..29u32 {
        let file = 300 + [0, 0, 0, 7, 7, 7, 2][step as usize / 4 % 7];
        blocks.push(at(file, step * 7919 % 1500));
    }
    blocks.extend([at(300, 12), at(300, 13), at(300, 14)]);
    assert_eq!(blocks.len(), 32);
    let header = |blocks: &[BlockAt]| {
        let answer = Answer::Blocks {
            id: 0,
            token: Token([7; 16]),
            blocks: blocks.to_vec(),
            compressed: vec![0],
        };
        encoded_answer(&answer).2.len() - 1
    };
    let scattered = header(&blocks);
    assert!(scattered <= 100, "{scattered} bytes");
    let run: Vec<BlockAt> = (64..96).map(|index| at(300, index)).collect();
    let run = header(&run);
    assert!(run <= 26, "{run} bytes");
}

#[test]
fn a_group_has_no_more_hashes_and_values_than_there_may_be() {
    let decoded = |hashes: u32, values: usize| {
        let group = Group {
            hashes: vec![BlockHash([1; 32]); hashes as usize].into(),
            proof: vec![[2; 32]; values].into(),
        };
        let at = GroupAt {
            file: FileId(1),
            group: 0,
        };
        let (kind, version, payload) = encoded_answer(&Answer::Group { at, group });
        // A message that is cut off is refused, even if its count promises more than is there.
        for end in 0..payload.len().min(3 + 32 * values) {
            assert!(Answer::decode(kind, version, &payload[..end]).is_err());
        }
        Answer::decode(kind, version, &payload).err()
    };
    assert_eq!(decoded(GROUP_BLOCKS, PROOF_VALUES_MAX), None);
    let limit = DecodeError::Limit;
    assert_eq!(decoded(GROUP_BLOCKS + 1, 0), Some(limit("hashes")));
    let many = decoded(0, PROOF_VALUES_MAX + 1);
    assert_eq!(many, Some(limit("values of a proof")));
}

#[test]
fn a_message_above_a_limit_is_refused() {
    let many = |count: u32| (0..count).map(|index| at(1, index * 2)).collect::<Vec<_>>();
    let refused = |request: &Request| {
        let (kind, version, payload) = encoded(request);
        Request::decode(kind, version, &payload).unwrap_err()
    };
    let id = 1;
    let blocks = many(BLOCKS_PER_MESSAGE_MAX as u32 + 1);
    assert_eq!(
        refused(&Request::Fetch { id, blocks }),
        DecodeError::Limit("blocks")
    );
    let around = SEGMENT_BLOCKS as u8 + 1;
    let read = Request::Read {
        id,
        token: None,
        at: at(1, 2),
        around,
    };
    assert!(matches!(refused(&read), DecodeError::Limit(_)));
    for (id, blocks) in [(1, vec![]), (0, many(1))] {
        assert!(matches!(
            refused(&Request::Fetch { id, blocks }),
            DecodeError::Value(_)
        ));
    }
    let nobody = Request::End {
        token: Token([0; 16]),
        is_exact: true,
        has_exited: true,
    };
    assert!(matches!(refused(&nobody), DecodeError::Value(_)));
    let (kind, version, payload) = encoded_answer(&Answer::Blocks {
        id: 0,
        token: Token([1; 16]),
        blocks: many(SEGMENT_BLOCKS + 1),
        compressed: vec![0],
    });
    assert_eq!(
        Answer::decode(kind, version, &payload),
        Err(DecodeError::Limit("blocks"))
    );
    assert_eq!(
        Answer::decode(kind, version + 1, &payload),
        Err(DecodeError::Version(version + 1))
    );
    assert_eq!(
        Request::decode(kind, version, &payload),
        Err(DecodeError::Kind(kind))
    );
}

#[test]
fn an_oversized_list_of_held_blocks_is_cut_to_fit() {
    let held = HeldBlocks::of((0..40_000).map(|step| at(step / 4, step % 4 * 9)).collect());
    let begin = Request::Begin {
        token: Token([1; 16]),
        task: FileId(1),
        held: held.clone(),
    };
    let (kind, version, payload) = encoded(&begin);
    assert!(payload.len() <= REQUEST_BYTES_MAX);
    let Ok(Request::Begin { held: told, .. }) = Request::decode(kind, version, &payload) else {
        panic!("refused");
    };
    assert!(!told.files.is_empty() && told.files.len() <= HELD_FILES_MAX);
    assert_eq!(told.files[..], held.files[..told.files.len()]);
}

#[test]
fn held_blocks_list_their_runs() {
    let held = HeldBlocks::of(vec![at(3, 5), at(1, 1), at(3, 4), at(3, 5), at(3, 9)]);
    assert_eq!(
        held.files,
        [(FileId(1), vec![(1, 1)]), (FileId(3), vec![(4, 2), (9, 1)])]
    );
    assert!(held.has(at(3, 5)) && !held.has(at(3, 6)) && !held.has(at(2, 5)));
}

#[test]
fn no_message_has_a_second_form() {
    let fetch = |payload: &[u8]| Request::decode(0x04, 1, payload);
    // Two adjacent blocks are one run: 1, 2 blocks, (file 0, several), none more.
    assert!(fetch(&[1, 2, 2, 0]).is_ok());
    assert!(matches!(fetch(&[1, 2, 0, 0]), Err(DecodeError::Value(_))));
    // The same file, encoded as a change of file.
    assert!(matches!(fetch(&[1, 1, 1, 0]), Err(DecodeError::Value(_))));
    // A number with a superfluous zero byte.
    assert_eq!(fetch(&[0x81, 0, 2, 2, 0]), Err(DecodeError::Number));
    assert_eq!(
        fetch(&[1, 1, 0xff, 0xff, 0xff, 0]),
        Err(DecodeError::Number)
    );
}
