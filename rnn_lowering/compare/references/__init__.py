"""What a comparison needs of each kind of recurrent nodes."""
