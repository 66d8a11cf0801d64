#![cfg_attr(fuzzing, no_main)]

fuzz::fuzz_target!(fuzz::sparkplug::sparkplug);
