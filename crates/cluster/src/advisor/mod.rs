//! Where to run a job: on one board, on n boards, or in the data centre.
//!
//! An option that privacy forbids is excluded. The spread of the inputs gives each other option a probability of being
//! late. If an option is safe (in time with the question's confidence), the option with the least expected loss is
//! advised. This loss is the price of being late plus the extra cost, relative to the cheapest option that turns out to
//! be in time. The advised option may be unsafe, if all safe ones cost a multiple: the answer then says that a risk was
//! taken. If no option is safe there is no advice, and the answer names the option that is most likely in time.
//!
//! **Files:** `input.rs` the question, with the origin of each figure, `file.rs` its JSON, `evaluate.rs` options and
//! the choice, `answer.rs` the answer with break-even points and sensitivity.

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
