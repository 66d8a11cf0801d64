#![cfg_attr(fuzzing, no_main)]

fuzz::fuzz_target!(fuzz::intake::line_protocol);
