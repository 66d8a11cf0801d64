//! Where to run a job: on one board, on n boards, or in the data centre.
//!
//! An option that privacy forbids is out. The spread of the inputs gives each of the others a probability of being
//! late. Where one is safe (in time with the question's confidence), the option is advised that is expected to lose
//! least: what it costs above the cheapest option that turns out to be in time, as a part of that one's cost, and the
//! price of being late. That may be one that is not safe, where all safe ones cost a multiple: the answer says that it
//! was risked. Where no option is safe there is no advice, and the one that is most likely in time is named as that.
//!
//! **Files:** `input.rs` what is asked, with where each figure comes from, `file.rs` its JSON, `evaluate.rs` options
//! and the choice, `answer.rs` the answer with break-even points and sensitivity.

mod answer;
mod evaluate;
mod file;
mod input;

pub use answer::{Advice, BreakEven, Sensitivity, advise};
pub use evaluate::{Choice, Estimate, Fit, Place, choose};
pub use file::{parse_question, question_text};
pub use input::{
    BOARDS_MAX, CONFIDENCE, CONFIDENCE_FLOOR, Given, INPUTS, Input, LATE_PENALTY, Machine,
    Minimise, Origin, Privacy, Question,
};
