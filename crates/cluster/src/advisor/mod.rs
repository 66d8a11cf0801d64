//! Where a job shall run: on one board, on n boards, or in the data centre.
//!
//! An option that privacy forbids is out. So is one that, with a margin for the spread of the inputs, does not end by
//! the deadline. Of the others the one with the least expected value of the objective is advised, where the rest of the
//! risk to be late counts as so many results lost. An option with less margin is advised in its place where even so it
//! costs less: that is the case where all safe ones cost a multiple, and the answer says that it was risked. Where no
//! option is safe there is no advice, and the one that is most likely in time is named as that.
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
    BOARDS_MAX, CONFIDENCE, CONFIDENCE_FLOOR, Given, INPUTS, Input, LATE_PENALTY, Machine, Minimise, Origin, Privacy,
    Question,
};
