//! libkeelflash: the C interface of the flash store.
