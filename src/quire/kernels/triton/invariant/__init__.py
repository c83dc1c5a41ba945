"""Operations whose results do not depend on the rest of the batch."""
