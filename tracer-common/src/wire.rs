//! One macro: a `repr(C)` record whose bytes can be read and written without `unsafe`.

/// Declares a `repr(C)` struct of integers and byte arrays without padding, its size, and its byte codec.
///
/// The kernel side fills the struct in place; user space decodes with `decode`, which copies field by field and
/// returns `None` when the slice is too short. A layout with padding does not compile.
macro_rules! wire {
    ($(#[$meta:meta])* pub struct $name:ident { $($(#[$fmeta:meta])* pub $field:ident : $ty:tt,)+ }) => {
        $(#[$meta])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub struct $name { $($(#[$fmeta])* pub $field: $ty,)+ }

        impl $name {
            /// Bytes on the wire.
            pub const SIZE: usize = 0 $(+ core::mem::size_of::<$ty>())+;

            /// Reads the record from the front of `bytes`; `None` when there are fewer than [`Self::SIZE`].
            pub fn decode(bytes: &[u8]) -> Option<Self> {
                // With a length that the compiler knows, one check is left of one a field.
                let bytes: &[u8; Self::SIZE] = bytes.first_chunk()?;
                <Self as $crate::wire::Field>::take(&mut &bytes[..])
            }

            /// Writes the record to the front of `out`; `None` when it does not fit.
            pub fn encode(&self, out: &mut [u8]) -> Option<()> {
                <Self as $crate::wire::Field>::put(self, &mut &mut *out)
            }
        }

        impl $crate::wire::Field for $name {
            #[inline(always)]
            fn take(from: &mut &[u8]) -> Option<Self> {
                Some(Self { $($field: <$ty as $crate::wire::Field>::take(from)?,)+ })
            }
            #[inline]
            fn put(&self, to: &mut &mut [u8]) -> Option<()> {
                $(<$ty as $crate::wire::Field>::put(&self.$field, to)?;)+
                Some(())
            }
        }

        const _: () = assert!(core::mem::size_of::<$name>() == $name::SIZE, "padding in a wire record");
    };
}
pub(crate) use wire;

/// A type with a fixed number of bytes on the wire, in the byte order of the machine.
pub(crate) trait Field: Sized {
    fn take(from: &mut &[u8]) -> Option<Self>;
    fn put(&self, to: &mut &mut [u8]) -> Option<()>;
}

macro_rules! integer {
    ($($ty:ty),+) => { $(impl Field for $ty {
        #[inline(always)]
        fn take(from: &mut &[u8]) -> Option<Self> {
            let (head, tail) = from.split_first_chunk()?;
            *from = tail;
            Some(Self::from_ne_bytes(*head))
        }
        #[inline]
        fn put(&self, to: &mut &mut [u8]) -> Option<()> {
            let (head, tail) = core::mem::take(to).split_first_chunk_mut()?;
            *head = self.to_ne_bytes();
            *to = tail;
            Some(())
        }
    })+ };
}
integer!(u8, u16, u32, u64, i64);

impl<const N: usize> Field for [u8; N] {
    #[inline(always)]
    fn take(from: &mut &[u8]) -> Option<Self> {
        let (head, tail) = from.split_first_chunk()?;
        *from = tail;
        Some(*head)
    }
    #[inline]
    fn put(&self, to: &mut &mut [u8]) -> Option<()> {
        let (head, tail) = core::mem::take(to).split_first_chunk_mut()?;
        *head = *self;
        *to = tail;
        Some(())
    }
}

impl<const N: usize> Field for [u64; N] {
    #[inline(always)]
    fn take(from: &mut &[u8]) -> Option<Self> {
        let mut all = [0; N];
        for one in &mut all {
            *one = u64::take(from)?;
        }
        Some(all)
    }
    #[inline]
    fn put(&self, to: &mut &mut [u8]) -> Option<()> {
        self.iter().try_for_each(|one| one.put(to))
    }
}
